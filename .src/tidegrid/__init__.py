"""tidegrid forecasts what a GPU cluster will need, and fills the cluster with it."""

__version__ = "0.1.0"
