"""Files of texts through a model: read in shards, run, written in shards, resumed where a run ended."""
