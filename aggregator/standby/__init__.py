"""A Leader on several machines: one leads, the others stand by, and a database says which."""
