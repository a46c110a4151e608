"""Many hosts through the production encoder, masks and aggregators."""
