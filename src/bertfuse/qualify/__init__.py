"""Qualifying kernels and fused models on the machine at hand, over random problems."""
