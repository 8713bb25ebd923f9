"""Files: written atomically, read without trust, weights as safetensors."""
