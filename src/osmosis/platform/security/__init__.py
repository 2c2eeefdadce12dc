"""What protects: token hashes, encrypted secrets, signed object URLs, who is asking."""
