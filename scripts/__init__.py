"""What a person runs from the checkout; a package so that none of the machine's own hides it."""
