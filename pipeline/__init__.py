"""The main flow: train, forecast, plan; rolling horizon; replay of traces; comparisons."""
