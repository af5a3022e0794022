//! Finds, fetches, initialises, starts and stops PostgreSQL servers.
