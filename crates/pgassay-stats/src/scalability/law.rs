//! The law itself: throughput, knee and peak for given parameters.

/// The Universal Scalability Law.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalabilityLaw {
    /// λ: throughput of one client.
    pub per_client: f64,
    /// σ: contention, 0 or more.
    pub contention: f64,
    /// κ: crosstalk, 0 or more.
    pub crosstalk: f64,
}

impl ScalabilityLaw {
    /// Throughput of this many clients.
    pub fn throughput(&self, clients: f64) -> f64 {
        self.per_client * clients / self.slowdown(clients)
    }

    /// Latency relative to that of one client.
    fn slowdown(&self, clients: f64) -> f64 {
        let others = clients - 1.0;
        1.0 + self.contention * others + self.crosstalk * clients * others
    }

    /// By how many percent throughput grows if the number of clients grows by 1%.
    pub fn elasticity(&self, clients: f64) -> f64 {
        (1.0 - self.contention - self.crosstalk * clients * clients) / self.slowdown(clients)
    }

    /// The number of clients at which the elasticity is 1/2, at least 1; infinite without contention and
    /// crosstalk.
    pub fn knee(&self) -> f64 {
        let serial = self.contention - self.crosstalk;
        let free = (1.0 - self.contention).max(0.0);
        // The positive root of 3κN² + (σ − κ)N − (1 − σ), in the form that κ = 0 does not break.
        let root = (serial * serial + 12.0 * self.crosstalk * free).sqrt();
        let below = serial + root;
        if below <= 0.0 && self.contention < 1.0 {
            return f64::INFINITY;
        }
        (2.0 * free / below).max(1.0)
    }

    /// The number of clients with the most throughput, at least 1; infinite without crosstalk.
    pub fn peak(&self) -> f64 {
        if self.contention >= 1.0 {
            return 1.0;
        }
        ((1.0 - self.contention) / self.crosstalk).sqrt().max(1.0)
    }
}
