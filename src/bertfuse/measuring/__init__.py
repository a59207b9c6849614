"""What is compared and timed side by side: contenders, milliseconds in turn, differences of arrays."""
