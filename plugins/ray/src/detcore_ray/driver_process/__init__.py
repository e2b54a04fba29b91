"""The driver process: it joins the Ray cluster and places the workers of trials."""
