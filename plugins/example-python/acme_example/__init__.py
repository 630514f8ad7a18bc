"""The executor of acme-example, for coda-host."""
