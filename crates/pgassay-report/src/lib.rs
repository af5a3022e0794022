//! Shows results: terminal, HTML, JSON.
