//! The plan that tries suggested fixes: the affected variant unchanged, and with one thing changed.
//! Only this experiment proves a finding.
//!
//! One variant is treated: the one with the strongest finding whose suggested fix can be run as a
//! variant. Its fixes run under all conditions for which any of them was suggested.

use std::collections::BTreeSet;

use pgassay_model::plan::{Plan, Point, PointId, Schedule, StoppingRule};
use pgassay_model::study::DriverKind;
use pgassay_record::finding::Finding;
use pgassay_record::remedy::RemedyVariant;
use pgassay_record::run::Run;

/// The most fixes to run. With more of them, the trials of each would be too far apart.
const FIXES_MAX: usize = 3;

/// The second plan, and the findings that it tests.
#[derive(Debug, Clone, PartialEq)]
pub struct RemedyTrial {
    /// The plan; its baseline is the affected variant.
    pub plan: Plan,
    /// The variant of the first stage that is treated.
    pub variant: usize,
    /// The findings' signatures, one for each variant of the plan except the baseline.
    pub ids: Vec<String>,
    /// The names of the suggested fixes, in the same order.
    pub fixes: Vec<String>,
    /// For each condition of the plan: its index in the first stage.
    pub conditions: Vec<usize>,
}

/// The second stage of a run; `None` if no finding has a fix that can be run as a variant.
pub fn remedy_trial(run: &Run) -> Option<RemedyTrial> {
    let has_remedy = |finding: &&Finding| remedy_of(run, finding).is_some();
    let treatable: Vec<&Finding> = run.findings.iter().filter(has_remedy).collect();
    let treated = treatable.first()?.variant?;
    let of_treated = || treatable.iter().filter(|it| it.variant == Some(treated));
    let mut chosen: Vec<(&Finding, &RemedyVariant)> = Vec::new();
    for finding in of_treated() {
        let Some(remedy) = remedy_of(run, finding) else {
            continue;
        };
        let is_known = chosen.iter().any(|(_, known)| known.name == remedy.name);
        if !is_known && chosen.len() < FIXES_MAX {
            chosen.push((finding, remedy));
        }
    }
    let wanted: BTreeSet<usize> = of_treated()
        .filter(|finding| chosen.iter().any(|(it, _)| it.id == finding.id))
        .filter_map(|finding| finding.condition)
        .collect();
    let remedies: Vec<&RemedyVariant> = chosen.iter().map(|(_, remedy)| *remedy).collect();
    Some(RemedyTrial {
        plan: plan(&run.plan, treated, &wanted, &remedies),
        variant: treated,
        ids: chosen.iter().map(|(it, _)| it.id.clone()).collect(),
        fixes: chosen.iter().map(|(_, fix)| fix.name.clone()).collect(),
        conditions: wanted.iter().copied().collect(),
    })
}

/// The first fix of a finding that changes something at its point and can be run there.
fn remedy_of<'a>(run: &Run, finding: &'a Finding) -> Option<&'a RemedyVariant> {
    let point = run
        .plan
        .point(PointId::new(finding.condition?, finding.variant?));
    if finding.difference_us.is_some() || point.driver != DriverKind::Postgres {
        return None;
    }
    let server = &run.plan.servers[point.server];
    let settings = run.effective_settings(point.server)?;
    let mut remedies = finding.fix_variants.iter();
    remedies.find(|remedy| remedy.changes(point, server, settings))
}

fn plan(
    first: &Plan,
    treated: usize,
    wanted: &BTreeSet<usize>,
    remedies: &[&RemedyVariant],
) -> Plan {
    let base = &first.variants[treated];
    let with = remedies
        .iter()
        .map(|remedy| format!("{base}, {}", remedy.name));
    let mut plan = Plan {
        variants: [base.clone()].into_iter().chain(with).collect(),
        stepwise: false,
        gate_against: Vec::new(),
        // They are met: the treated variant has already run.
        requirements: Vec::new(),
        servers: Vec::new(),
        conditions: Vec::new(),
        points: Vec::new(),
        schedule: Schedule {
            gate_limit_percent: None,
            // Whether a fix helps is a verdict.
            half_width_percent: None,
            stopping: match first.schedule.stopping {
                StoppingRule::Precision => StoppingRule::Sequential,
                other => other,
            },
            ..first.schedule
        },
    };
    for (number, &condition) in wanted.iter().enumerate() {
        plan.conditions.push(first.conditions[condition].clone());
        let of_first = first.point(PointId::new(condition, treated));
        let untreated = RemedyVariant::default();
        let all = [&untreated].into_iter().chain(remedies.iter().copied());
        for (variant, remedy) in all.enumerate() {
            let server = remedy.server(&first.servers[of_first.server], remedies.len());
            let place = plan.servers.iter().position(|known| *known == server);
            let place = place.unwrap_or_else(|| {
                plan.servers.push(server);
                plan.servers.len() - 1
            });
            let mut session = of_first.session.clone();
            session.extend(remedy.session.clone());
            plan.points.push(Point {
                variant,
                condition: number,
                server: place,
                protocol: remedy.protocol.unwrap_or(of_first.protocol),
                session,
                ..of_first.clone()
            });
        }
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use pgassay_model::plan::ServerPlan;
    use pgassay_model::study::Protocol;

    fn server() -> ServerPlan {
        ServerPlan {
            version: Some("10".to_owned()),
            binaries: None,
            dsn: None,
            settings: [("work_mem".to_owned(), "1MB".to_owned())].into(),
            databases: Vec::new(),
            tcp: false,
            tls: false,
            environment: [].into(),
            data_checksums: None,
            idle_connections: 0,
            connections: 18,
        }
    }

    #[test]
    fn a_server_of_the_users_own_gets_remedies_of_sessions_only() {
        let own = ServerPlan {
            dsn: Some("host=h".to_owned()),
            version: None,
            ..server()
        };
        let text = "question = \"?\"\n[[script]]\nname = \"a\"\ntext = \"select 1\"\n[[variant]]\nname = \"v\"\n";
        let source = pgassay_model::study::StudySource {
            file: "s.toml".to_owned(),
            text: text.to_owned(),
        };
        let overrides = pgassay_model::plan::Overrides::default();
        let plan =
            pgassay_model::plan::plan(&source.parse().unwrap(), &source, &overrides).unwrap();
        let changes = |remedy: RemedyVariant, server: &ServerPlan| {
            remedy.changes(&plan.points[0], server, &server.settings)
        };
        assert!(changes(RemedyVariant::version("17"), &server()));
        assert!(!changes(RemedyVariant::version("17"), &own));
        assert!(!changes(RemedyVariant::settings(&[("jit", "off")]), &own));
        assert!(changes(RemedyVariant::session(&[("jit", "off")]), &own));
        assert!(changes(RemedyVariant::protocol(Protocol::Prepared), &own));
    }

    #[test]
    fn a_version_or_a_setting_needs_a_server_of_its_own_and_a_session_does_not() {
        let at_version = RemedyVariant::version("18").server(&server(), 2);
        assert_eq!(
            (at_version.version.as_deref(), at_version.connections),
            (Some("18"), 54)
        );
        let with_setting = RemedyVariant::settings(&[("work_mem", "64MB")]).server(&server(), 1);
        assert_eq!(with_setting.settings["work_mem"], "64MB");
        let shared = RemedyVariant::session(&[("work_mem", "64MB")]).server(&server(), 1);
        let untreated = RemedyVariant::default().server(&server(), 1);
        assert_eq!(shared, untreated);
        assert_eq!(
            RemedyVariant::protocol(Protocol::Prepared).server(&server(), 1),
            untreated
        );
    }
}
