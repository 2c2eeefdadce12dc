"""Names of earlier generations; see the modules inside."""
