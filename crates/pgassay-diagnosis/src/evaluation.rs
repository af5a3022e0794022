//! The result of applying a signature to one point.

use pgassay_record::finding::{Confidence, Fact, FactUnit, Source};
use pgassay_record::remedy::RemedyVariant;

use super::evidence::Evidence;
use super::operators::SAMPLES_MIN;

/// A known cause of lost time.
pub struct Signature {
    /// Stable name.
    pub id: &'static str,
    /// What happens, in a few words.
    pub title: &'static str,
    /// The section of PostgreSQL's manual to read.
    pub manual: &'static str,
    /// Measures its weight.
    pub measure: fn(&Evidence) -> Evaluation,
}

/// A signature's weight at a point, and the evidence for it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Evaluation {
    /// Time per transaction that the cause accounts for.
    pub weight_us: f64,
    /// The part of it that is waiting for others' work to end.
    pub queue_us: f64,
    /// Whether the weight is enough and all conditions hold for a finding.
    pub matched: bool,
    /// The evidence.
    pub facts: Vec<Fact>,
    /// The evidence against it.
    pub against: Vec<String>,
    /// The suggested fix.
    pub remedy: String,
    /// Suggested fixes that can be run as variants.
    pub variants: Vec<RemedyVariant>,
}

impl Evaluation {
    /// A cause with this weight, in µs per transaction.
    pub(super) fn of(weight_us: f64) -> Self {
        Self {
            weight_us,
            ..Self::default()
        }
    }

    /// Sets the part of the weight that is queueing.
    pub(super) fn queueing(mut self, us: f64) -> Self {
        self.queue_us = us;
        self
    }

    /// Whether most of the weight is queueing.
    pub(super) fn is_queueing(&self) -> bool {
        self.queue_us > 0.5 * self.weight_us
    }

    /// Marks the facts that `add` adds as context, not evidence: they would also be there without
    /// the cause.
    pub(super) fn context(self, add: impl FnOnce(Self) -> Self) -> Self {
        let before = self.facts.len();
        let mut measure = add(self);
        for fact in &mut measure.facts[before..] {
            fact.context = true;
        }
        measure
    }

    /// Marks them as context unless this holds, as for a figure that any load has until it is large.
    pub(super) fn context_unless(self, holds: bool, add: impl FnOnce(Self) -> Self) -> Self {
        if holds { add(self) } else { self.context(add) }
    }

    /// The same without what a few readings of wait events show: those become context, so that they are no source. If
    /// that leaves nothing but a few samples of stacks, it does not match.
    pub(super) fn without_chance(mut self, evidence: &Evidence) -> Self {
        let is_time = |it: &Fact| {
            it.source == Source::Waits && !it.context && it.unit == FactUnit::MicrosPerTransaction
        };
        let times = self.facts.iter().filter(|it| is_time(it));
        let waited_us: f64 = times.filter_map(|it| it.value).sum();
        // Half a reading: times are sums, with rounding errors.
        let few = SAMPLES_MIN as f64 - 0.5;
        if waited_us <= 0.0 || waited_us >= few * evidence.us_per_reading {
            return self;
        }
        for fact in &mut self.facts {
            fact.context |= fact.source == Source::Waits;
        }
        let others =
            |it: &Fact| !it.context && !matches!(it.source, Source::Stacks | Source::Conditions);
        let by_stacks_us = self.weight_us - waited_us;
        let is_enough = by_stacks_us > 0.0 && by_stacks_us >= few * evidence.stacks.us_per_sample;
        self.matched &= is_enough || self.facts.iter().any(others);
        self
    }

    /// Sets whether the signature matches.
    pub(super) fn when(mut self, holds: bool) -> Self {
        self.matched = holds;
        self
    }

    fn fact(mut self, source: Source, what: &str, value: Option<f64>, unit: FactUnit) -> Self {
        self.facts.push(Fact {
            source,
            what: what.to_owned(),
            value,
            unit,
            context: false,
        });
        self
    }

    /// Adds CPU time of stacks, if there is any.
    pub(super) fn stacks(self, what: &str, us: f64) -> Self {
        if us <= 0.0 {
            return self;
        }
        self.fact(
            Source::Stacks,
            what,
            Some(us),
            FactUnit::MicrosPerTransaction,
        )
    }

    /// Adds blocked time, if there is any.
    pub(super) fn waits(self, what: &str, us: f64) -> Self {
        if us <= 0.0 {
            return self;
        }
        self.fact(
            Source::Waits,
            what,
            Some(us),
            FactUnit::MicrosPerTransaction,
        )
    }

    /// Adds a counter per transaction, if it is not 0.
    pub(super) fn counter(self, what: &str, value: Option<f64>) -> Self {
        self.counted(what, value, FactUnit::PerTransaction)
    }

    /// Adds a counter of bytes per transaction, if it is not 0.
    pub(super) fn bytes(self, what: &str, value: Option<f64>) -> Self {
        self.counted(what, value, FactUnit::BytesPerTransaction)
    }

    /// Adds a counter of microseconds per transaction, if it is not 0.
    pub(super) fn micros(self, what: &str, value: Option<f64>) -> Self {
        self.counted(what, value, FactUnit::MicrosPerTransaction)
    }

    fn counted(self, what: &str, value: Option<f64>, unit: FactUnit) -> Self {
        match value.filter(|value| *value > 0.0) {
            Some(value) => self.fact(Source::Counters, what, Some(value), unit),
            None => self,
        }
    }

    /// Adds a share, if it is not 0.
    pub(super) fn share(self, source: Source, what: &str, value: Option<f64>) -> Self {
        match value.filter(|value| *value > 0.0) {
            Some(value) => self.fact(source, what, Some(value), FactUnit::Share),
            None => self,
        }
    }

    /// Adds a time measured by a clock, if there is one: a live server has no latencies.
    pub(super) fn clock(self, what: &str, us: f64) -> Self {
        if us <= 0.0 {
            return self;
        }
        self.fact(
            Source::Clocks,
            what,
            Some(us),
            FactUnit::MicrosPerTransaction,
        )
    }

    /// Adds a matching condition of the run, if it holds.
    pub(super) fn condition(self, holds: bool, what: &str) -> Self {
        if !holds {
            return self;
        }
        self.fact(Source::Conditions, what, None, FactUnit::None)
    }

    /// Adds evidence against the cause, if it holds.
    pub(super) fn against(mut self, holds: bool, what: &str) -> Self {
        if holds {
            self.against.push(what.to_owned());
        }
        self
    }

    /// Sets the suggested fix.
    pub(super) fn remedy(mut self, words: impl Into<String>) -> Self {
        self.remedy = words.into();
        self
    }

    /// Adds a suggested fix that can be run as a variant, if there is one.
    pub(super) fn variant(mut self, variant: Option<RemedyVariant>) -> Self {
        self.variants.extend(variant);
        self
    }

    /// `Likely` with at least two independent sources and nothing against it, else `Hint`.
    pub fn confidence(&self) -> Confidence {
        let is_evidence = |fact: &&Fact| !fact.context && fact.source != Source::Conditions;
        let evidence = self.facts.iter().filter(is_evidence);
        let mut sources: Vec<Source> = evidence.map(|fact| fact.source).collect();
        sources.sort();
        sources.dedup();
        if sources.len() >= 2 && self.against.is_empty() {
            Confidence::Likely
        } else {
            Confidence::Hint
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sources_are_likely_and_counter_evidence_makes_a_hint() {
        let one = Evaluation::of(5.0).stacks("a", 3.0).stacks("b", 2.0);
        assert_eq!(one.confidence(), Confidence::Hint);
        let two = one.counter("c", Some(1.0));
        assert_eq!(two.confidence(), Confidence::Likely);
        assert_eq!(two.against(true, "but").confidence(), Confidence::Hint);
    }

    #[test]
    fn conditions_and_context_are_not_a_second_source() {
        let one = || Evaluation::of(5.0).stacks("a", 3.0);
        let conditional = one().condition(true, "version 18");
        assert_eq!(conditional.confidence(), Confidence::Hint);
        let with_context = one().context(|it| it.clock("99th percentile", 9.0));
        assert_eq!(with_context.facts.len(), 2);
        assert_eq!(with_context.confidence(), Confidence::Hint);
        assert_eq!(
            with_context.waits("b", 1.0).confidence(),
            Confidence::Likely
        );
    }

    #[test]
    fn absent_figures_are_not_facts() {
        let none = Evaluation::of(0.0)
            .stacks("a", 0.0)
            .waits("b", 0.0)
            .counter("c", None)
            .counter("d", Some(0.0))
            .condition(false, "e")
            .against(false, "f");
        assert!(none.facts.is_empty() && none.against.is_empty());
    }
}
