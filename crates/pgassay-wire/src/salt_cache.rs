//! Salted passwords: deriving one takes milliseconds.

use std::sync::{Arc, Mutex, PoisonError};

use crate::password::Password;
use crate::scram::salt_password;

/// A run connects to a handful of servers; more salts than this are not cached.
const SALTS_MAX: usize = 64;

/// Salted passwords by (password, salt, iterations), shared by the clients of a run.
#[derive(Clone, Default)]
pub struct SaltCache(Arc<Mutex<Vec<Salted>>>);

struct Salted {
    password: Password,
    salt: Vec<u8>,
    iterations: u32,
    result: [u8; 32],
}

impl SaltCache {
    /// Returns the salted password, deriving it if it is not cached. The lock is held during the
    /// derivation, so that clients that sign in at the same time derive it only once.
    pub(crate) fn derive(&self, password: &Password, salt: &[u8], iterations: u32) -> [u8; 32] {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.iter().find(|entry| {
            entry.iterations == iterations && entry.salt == salt && &entry.password == password
        });
        if let Some(entry) = found {
            return entry.result;
        }
        let result = salt_password(password.reveal(), salt, iterations);
        if known.len() >= SALTS_MAX {
            known.clear();
        }
        known.push(Salted {
            password: password.clone(),
            salt: salt.to_vec(),
            iterations,
            result,
        });
        result
    }
}

impl std::fmt::Debug for SaltCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SaltCache")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn salted_passwords_are_kept() {
        let cache = SaltCache::default();
        let password = Password::new("secret");
        let first = cache.derive(&password, b"salt", 2);
        assert_eq!(first, cache.derive(&password, b"salt", 2));
        assert_ne!(first, cache.derive(&password, b"salt", 3));
        assert_ne!(first, cache.derive(&Password::new("other"), b"salt", 2));
        assert_eq!(cache.0.lock().unwrap().len(), 3);
    }
}
