"""Programs and libraries that processes execute: found, opened, read with bounds, named."""
