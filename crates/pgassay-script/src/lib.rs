//! pgbench's script language: lexer, parser, evaluator and its random numbers.
