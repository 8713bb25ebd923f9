"""Files: written atomically, read as untrusted, weights as safetensors."""
