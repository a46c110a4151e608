"""The log between agents and Leader, key files and privilege drop."""
