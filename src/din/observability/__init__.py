"""Pure cores of seeing: quantiles, waterfall, metric names."""
