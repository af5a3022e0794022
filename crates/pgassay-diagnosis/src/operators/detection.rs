//! A problem that a signature detected at one object, and the evidence for it.

use pgassay_record::activity::ActivityStatement;
use pgassay_record::finding::{
    Confidence, Fact, FactUnit, Finding, FindingObject, ObjectKind, Source,
};

use super::live_view::LiveView;
use super::signature::OperatorSignature;

/// A problem at one object.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Detection {
    object: FindingObject,
    statement: Option<String>,
    /// A title for this one that says more than the signature's.
    title: Option<&'static str>,
    /// Average active sessions that the fix would give back at most; `None` if not known.
    pub(super) saved: Option<f64>,
    /// Without load: how soon it will hurt. 9 is today, 1 is housekeeping.
    pub(super) urgency: u8,
    /// Breaks ties between objects of one signature: bytes, rows, or a rate.
    pub(super) extent: f64,
    pub(super) facts: Vec<Fact>,
    against: Vec<String>,
    fix: String,
    sql: Option<String>,
    risk: String,
}

impl Detection {
    /// A problem at this object.
    pub(super) fn of(kind: ObjectKind, name: impl Into<String>) -> Self {
        Self {
            object: FindingObject {
                kind,
                name: name.into(),
            },
            statement: None,
            title: None,
            saved: None,
            urgency: 0,
            extent: 0.0,
            facts: Vec::new(),
            against: Vec::new(),
            fix: String::new(),
            sql: None,
            risk: String::new(),
        }
    }

    /// The object's name.
    pub(super) fn name(&self) -> &str {
        &self.object.name
    }

    /// The fingerprint of the statement concerned.
    pub(super) fn fingerprint_of_statement(&self) -> Option<&str> {
        self.statement.as_deref()
    }

    /// Sets what the fix would give back, in average sessions.
    pub(super) fn saved(mut self, sessions: f64) -> Self {
        self.saved = Some(sessions);
        self
    }

    /// Sets how soon it will hurt.
    pub(super) fn urgent(mut self, urgency: u8) -> Self {
        self.urgency = urgency;
        self
    }

    /// Sets its size, for the order among objects of one signature.
    pub(super) fn extent(mut self, extent: f64) -> Self {
        self.extent = extent;
        self
    }

    /// Replaces the title of the signature.
    pub(super) fn title(mut self, title: Option<&'static str>) -> Self {
        self.title = title;
        self
    }

    /// Names the statement concerned.
    pub(super) fn statement(self, statement: Option<&ActivityStatement>) -> Self {
        self.fingerprint(statement.map(|it| it.fingerprint.as_str()))
    }

    /// Names the statement concerned by its fingerprint.
    pub(super) fn fingerprint(mut self, fingerprint: Option<&str>) -> Self {
        self.statement = fingerprint.map(str::to_owned);
        self
    }

    fn fact(mut self, source: Source, what: String, value: Option<f64>, unit: FactUnit) -> Self {
        self.facts.push(Fact {
            source,
            what,
            value,
            unit,
            context: false,
        });
        self
    }

    /// Adds a state that the server reports.
    pub(super) fn state(self, what: impl Into<String>) -> Self {
        self.fact(Source::Catalog, what.into(), None, FactUnit::None)
    }

    /// Adds a state with a figure.
    pub(super) fn figure(self, what: &str, value: f64, unit: FactUnit) -> Self {
        self.fact(Source::Catalog, what.to_owned(), Some(value), unit)
    }

    /// Adds a figure of the server's statistics.
    pub(super) fn counter(self, what: &str, value: f64, unit: FactUnit) -> Self {
        self.fact(Source::Counters, what.to_owned(), Some(value), unit)
    }

    /// Adds the load of sampled sessions, if there is any.
    pub(super) fn load(self, what: impl Into<String>, sessions: f64) -> Self {
        if sessions <= 0.0 {
            return self;
        }
        self.fact(
            Source::Waits,
            what.into(),
            Some(sessions),
            FactUnit::Sessions,
        )
    }

    /// Adds a figure of sampled sessions.
    pub(super) fn sampled(self, what: &str, value: f64, unit: FactUnit) -> Self {
        self.fact(Source::Waits, what.to_owned(), Some(value), unit)
    }

    /// Adds what helps to find the place, and is not evidence; nothing if it is empty.
    pub(super) fn context(mut self, what: impl Into<String>) -> Self {
        let what = what.into();
        if what.is_empty() {
            return self;
        }
        self = self.fact(Source::Conditions, what, None, FactUnit::None);
        if let Some(fact) = self.facts.last_mut() {
            fact.context = true;
        }
        self
    }

    /// Adds a figure that is shown for context.
    pub(super) fn context_figure(mut self, what: &str, value: f64, unit: FactUnit) -> Self {
        self = self.fact(Source::Conditions, what.to_owned(), Some(value), unit);
        if let Some(fact) = self.facts.last_mut() {
            fact.context = true;
        }
        self
    }

    /// Adds to it what `add` returns, if there is something.
    pub(super) fn with<T>(self, some: Option<T>, add: impl FnOnce(Self, T) -> Self) -> Self {
        match some {
            Some(it) => add(self, it),
            None => self,
        }
    }

    /// Adds evidence against it, if it holds.
    pub(super) fn against(mut self, holds: bool, what: impl Into<String>) -> Self {
        if holds {
            self.against.push(what.into());
        }
        self
    }

    /// Sets the suggested fix.
    pub(super) fn fix(mut self, words: impl Into<String>) -> Self {
        self.fix = words.into();
        self
    }

    /// Sets the statement that carries it out.
    pub(super) fn sql(mut self, sql: impl Into<String>) -> Self {
        self.sql = Some(sql.into());
        self
    }

    /// Sets the fix's risk.
    pub(super) fn risk(mut self, words: impl Into<String>) -> Self {
        self.risk = words.into();
        self
    }

    /// Whether it would give back enough, as far as that is known.
    pub(super) fn is_noticeable(&self, view: &LiveView<'_>) -> bool {
        self.saved.is_none_or(|saved| saved >= view.noticeable())
    }

    /// `Likely` with two independent sources, or with a state that the server reports, and nothing
    /// against it; else `Hint`.
    pub(super) fn confidence(&self) -> Confidence {
        let is_evidence = |fact: &&Fact| !fact.context && fact.source != Source::Conditions;
        let evidence = self.facts.iter().filter(is_evidence);
        let mut sources: Vec<Source> = evidence.map(|fact| fact.source).collect();
        sources.sort();
        sources.dedup();
        let enough = sources.len() >= 2 || sources.contains(&Source::Catalog);
        if enough && self.against.is_empty() {
            Confidence::Likely
        } else {
            Confidence::Hint
        }
    }

    /// The finding as reported. Its weight is per transaction, if any ended.
    pub(super) fn finding(
        &self,
        signature: &OperatorSignature,
        view: &LiveView<'_>,
        transactions: Option<u64>,
    ) -> Finding {
        let saved_us = self.saved.unwrap_or(0.0) * view.activity.window_us;
        let ended = transactions.filter(|count| *count > 0);
        Finding {
            id: signature.id.to_owned(),
            title: self.title.unwrap_or(signature.title).to_owned(),
            condition: None,
            variant: None,
            difference_us: None,
            difference_interval_us: None,
            confidence: self.confidence(),
            weight_us: ended.map_or(0.0, |count| saved_us / count as f64),
            share: view.share(self.saved.unwrap_or(0.0)),
            queueing: false,
            explained_by: None,
            fix_result: None,
            evidence: self.facts.clone(),
            evidence_against: self.against.clone(),
            suggested_fix: self.fix.clone(),
            manual: signature.manual.to_owned(),
            fix_variants: Vec::new(),
            object: Some(self.object.clone()),
            statement: self.statement.clone(),
            saved_sessions: self.saved,
            fix_sql: self.sql.clone().map(|sql| where_to_run(view, sql)),
            risk: Some(self.risk.clone()).filter(|risk| !risk.is_empty()),
        }
    }
}

/// What changes the database cannot run on a standby.
fn where_to_run(view: &LiveView<'_>, sql: String) -> String {
    const ANYWHERE: [&str; 3] = ["select", "alter system", "set "];
    let is_change = !ANYWHERE.iter().any(|it| sql.starts_with(it));
    if view.catalog.is_standby && is_change && !sql.contains(" -- ") {
        format!("{sql} -- on the primary")
    } else {
        sql
    }
}
