//! Variants that are identical to what they are compared with.

use super::{Plan, PlannedScript, Point};

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
    use crate::plan::{Overrides, plan};
    use crate::study::StudySource;

    fn repeated(scripts: [&str; 2]) -> Vec<[usize; 2]> {
        let [a, b] = scripts.map(|text| format!("text = \"{text}\""));
        let source = StudySource {
            file: "s.toml".to_owned(),
            text: format!(
                "question = \"?\"\n[[script]]\nname = \"a\"\n{a}\n[[script]]\nname = \"b\"\n{b}\n\
                 [[variant]]\nname = \"a\"\nscript = \"a\"\n[[variant]]\nname = \"b\"\nscript = \"b\"\n"
            ),
        };
        let study = source.parse().unwrap();
        let planned = plan(&study, &source, &Overrides::default()).unwrap();
        planned.repeated_variants()
    }

    #[test]
    fn two_scripts_with_the_same_text_are_an_a_a_comparison() {
        assert_eq!(repeated(["select 1", "select 1"]), [[0, 1]]);
        assert!(repeated(["select 1", "select 2"]).is_empty());
    }
}
