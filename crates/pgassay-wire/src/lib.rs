//! The PostgreSQL protocol without I/O: conninfo, start-up, authentication, queries, pipelines.
