"""The process that speaks to Ray: it joins the cluster and places the workers of trials."""
