"""Looking at models and machines: benchmark, report, tuning, and the doctor."""
