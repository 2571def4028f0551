//! Find, configure, start and stop a nats-server.
