//! Provisioning of spaces and agents, and the executor of everything that needs a signing key.
