"""Train scripts of Accelerate, Lightning and transformers, whose framework owns the loop."""
