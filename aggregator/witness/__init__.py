"""What a Helper answered, witnessed outside its machine: so a rolled-back copy of it shows."""
