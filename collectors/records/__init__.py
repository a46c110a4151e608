"""What collectors say. Imports no collector and nobody who reads them."""
