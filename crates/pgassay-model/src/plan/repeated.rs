//! Variants that are identical to what they are compared with.

use std::collections::{BTreeMap, BTreeSet};

use super::{Plan, PlannedScript, Point, PointId, ServerPlan};
use crate::study::DriverKind;

impl Plan {
    /// Variants that are measured exactly as what they are compared with, each with that: A/A comparisons. The names of
    /// scripts do not matter.
    pub fn repeated_variants(&self) -> Vec<[usize; 2]> {
        let of = |variant: usize| {
            let points = self.points.iter().filter(move |it| it.variant == variant);
            points.map(without_names)
        };
        let compared = (1..self.variants.len()).map(|it| [self.baseline_of(it), it]);
        let repeated = compared.filter(|[baseline, variant]| of(*baseline).eq(of(*variant)));
        repeated.collect()
    }

    /// The settings in which two variants differ under a condition; `None` if they differ in anything else. Whether
    /// the settings have different values there, only the servers know.
    pub fn only_settings_differ(
        &self,
        condition: usize,
        variants: [usize; 2],
    ) -> Option<Vec<&str>> {
        let points = variants.map(|it| self.point(PointId::new(condition, it)));
        let [a, b] = points.map(|it| without_settings(self, it));
        if a != b {
            return None;
        }
        let [a, b] = points.map(|it| {
            let server = self.server_of(it).map(|server| &server.settings);
            [server, Some(&it.session)]
        });
        let names = a.iter().chain(&b).flatten().flat_map(|it| it.keys());
        let names: BTreeSet<&str> = names.map(String::as_str).collect();
        let value = |settings: Option<&'_ BTreeMap<String, String>>, name: &str| {
            settings.and_then(|it| it.get(name)).cloned()
        };
        let differs = |name: &&str| a.map(|it| value(it, name)) != b.map(|it| value(it, name));
        Some(names.into_iter().filter(differs).collect())
    }

    /// The servers of two variants that differ in the version or directory of their servers only; `None` if they
    /// differ in anything else, or not at all.
    pub fn only_builds_differ(&self, variants: [usize; 2]) -> Option<[usize; 2]> {
        let of = |variant: usize| {
            let points = self.points.iter().filter(move |it| it.variant == variant);
            points.map(|it| without_build(self, it))
        };
        let server = |variant: usize| {
            let point = self.points.iter().find(|it| it.variant == variant)?;
            Some(point.server)
        };
        let servers = [server(variants[0])?, server(variants[1])?];
        let is_alike = of(variants[0]).eq(of(variants[1]));
        (is_alike && servers[0] != servers[1]).then_some(servers)
    }

    /// The planned server of a point; `None` if that is not one of PostgreSQL.
    fn server_of(&self, point: &Point) -> Option<&ServerPlan> {
        let is_of_postgres = point.driver == DriverKind::Postgres;
        is_of_postgres.then(|| &self.servers[point.server])
    }
}

/// A point, its server and the setup of its data, without what says which build the server is of.
fn without_build(plan: &Plan, point: &Point) -> (Point, Option<ServerPlan>) {
    let (of_point, of_server) = without_settings(plan, point);
    let of_point = Point {
        session: point.session.clone(),
        ..of_point
    };
    let of_server = plan.server_of(point).zip(of_server);
    let of_server = of_server.map(|(planned, of_server)| ServerPlan {
        version: None,
        binaries: None,
        settings: planned.settings.clone(),
        ..of_server
    });
    (of_point, of_server)
}

/// A point, its server and the setup of its data, without settings.
fn without_settings(plan: &Plan, point: &Point) -> (Point, Option<ServerPlan>) {
    let of_point = Point {
        server: 0,
        database: 0,
        session: BTreeMap::new(),
        ..without_names(point)
    };
    let of_server = plan.server_of(point).map(|server| {
        let database = server.databases.get(point.database);
        ServerPlan {
            settings: BTreeMap::new(),
            databases: database.cloned().into_iter().collect(),
            connections: 0,
            ..server.clone()
        }
    });
    (of_point, of_server)
}

fn without_names(point: &Point) -> Point {
    let scripts = point.scripts.iter().map(|script| PlannedScript {
        index: 0,
        name: String::new(),
        file: None,
        ..script.clone()
    });
    Point {
        variant: 0,
        scripts: scripts.collect(),
        ..point.clone()
    }
}

#[cfg(test)]
mod tests {
    use crate::plan::{Overrides, Plan, plan};
    use crate::study::StudySource;

    fn repeated(scripts: [&str; 2]) -> Vec<[usize; 2]> {
        let variants = "[[variant]]\nname = \"a\"\nscript = \"a\"\n[[variant]]\nname = \"b\"\nscript = \"b\"\n";
        planned(scripts, variants).repeated_variants()
    }

    fn planned(scripts: [&str; 2], variants: &str) -> Plan {
        let [a, b] = scripts.map(|text| format!("text = \"{text}\""));
        let source = StudySource {
            file: "s.toml".to_owned(),
            text: format!(
                "question = \"?\"\n[[script]]\nname = \"a\"\n{a}\n[[script]]\nname = \"b\"\n{b}\n{variants}"
            ),
        };
        let study = source.parse().unwrap();
        plan(&study, &source, &Overrides::default()).unwrap()
    }

    #[test]
    fn two_scripts_with_the_same_text_are_an_a_a_comparison() {
        assert_eq!(repeated(["select 1", "select 1"]), [[0, 1]]);
        assert!(repeated(["select 1", "select 2"]).is_empty());
    }

    /// Regression: looking for A/A comparisons panicked, since such a plan has no server of PostgreSQL.
    #[test]
    fn a_study_of_redis_only_does_not_panic() {
        let variants = ["a", "b"].map(|name| {
            format!("[[variant]]\nname = \"{name}\"\ndriver = \"redis\"\nscript = \"{name}\"\n")
        });
        let planned = planned(["INCR k", "INCR k"], &variants.concat());
        assert!(planned.servers.is_empty());
        assert_eq!(planned.repeated_variants(), [[0, 1]]);
        assert_eq!(planned.only_settings_differ(0, [0, 1]), Some(Vec::new()));
        assert_eq!(planned.only_builds_differ([0, 1]), None);
    }
}
