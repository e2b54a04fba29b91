"""Load the data of a trial or script from any batch on, and in the same order again."""
