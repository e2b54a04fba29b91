"""Write models as SavedModels, for serving."""
