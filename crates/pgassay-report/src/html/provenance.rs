//! Everything needed to repeat the study: its text, the plan, the servers and how they were built, and
//! the machine.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};
use pgassay_record::run::{Run, ServerFacts};

use crate::{number, sentence};

/// The last section of the page.
pub(super) fn section(run: &Run) -> Markup {
    html! {
        section #repeat {
            h2 { "How to reproduce this run" }
            (plan(run))
            (servers(run))
            (checks(run))
            (study(run))
        }
    }
}

/// The schedule of the trials, with what each number means for the statistics.
fn plan(run: &Run) -> Markup {
    let schedule = &run.plan.schedule;
    let took_us = run.ended_us.saturating_sub(run.started_us) as f64;
    html! {
        dl {
            dt { "run" } dd { code { (run.id) } }
            dt { "study" } dd { (run.study_name) }
            @if let Some(source) = &run.study.source { dt { "source" } dd { (source) } }
            dt { "when" }
            dd { (number::moment(run.started_us)) ", " (number::duration(took_us)) " in total" }
            dt { "program" } dd { "pgassay " (run.pgassay_version) ", result format " (run.schema) }
            dt { "seed" }
            dd { (schedule.seed) " (the same seed gives the same order and the same random numbers)" }
            dt { "blocks" }
            dd {
                (sentence::blocks_run(run)) " passes, in random order, over " (run.plan.points.len())
                " points (a point is a variant under a condition); within a block, pgassay opens new connections "
                "for each condition and runs its variants in random order, then in reverse; each "
                "block gives one pair per comparison, from the throughput of all its timed trials"
            }
            dt { "trials" }
            dd {
                (schedule.timed()) " timed and " (schedule.profiled) " profiled per point and block "
                "(and, in each of the first two blocks, one for hardware counters, if available), "
                (number::duration(schedule.trial_us as f64)) " each after a settling time of "
                (number::duration(schedule.settle_us as f64)) "; "
                (number::whole(run.trials.len() as f64)) " trials were kept"
            }
            dt { "warm-up" }
            dd {
                "until throughput agrees in three windows of " (number::duration(schedule.warm_up_window_us as f64))
                ", at most " (number::duration(schedule.warm_up_cap_us as f64))
            }
            dt { "load" }
            dd { (number::count(u64::from(schedule.threads), "thread")) " per point, using epoll" }
        }
    }
}

/// Every server that ran, in the plan's order.
fn servers(run: &Run) -> Markup {
    html! {
        h3 { "Servers" }
        @if builds_differ(&run.servers) {
            p.caution {
                "These servers were built differently (compiler or flags): differences between "
                "them may come from their builds."
            }
        }
        @for (index, server) in run.servers.iter().enumerate() {
            dl {
                dt { "version" } dd { "PostgreSQL " (server.version) ", from " (server.origin) }
                dt { "compiler" } dd { (server.compiler) }
                dt { "CFLAGS" } dd { code { (server.cflags) } }
                dt { "configure" } dd { code { (server.configure) } }
                @if let Some(planned) = run.plan.servers.get(index) {
                    @if let Some(dsn) = &planned.dsn {
                        dt { "connection" } dd { code { (dsn) } }
                        dt { "non-default settings" } dd { (settings(&server.settings)) }
                    } @else {
                        dt { "settings" } dd { (settings(&planned.settings)) }
                    }
                    @if !planned.environment.is_empty() {
                        dt { "environment" }
                        dd { ul.plain {
                            @for (name, value) in &planned.environment {
                                li { code { (name) "=" (value) } }
                            }
                        } }
                    }
                }
            }
        }
    }
}

fn settings(settings: &BTreeMap<String, String>) -> Markup {
    html! {
        @if settings.is_empty() { "none" } @else { ul.plain {
            @for (name, value) in settings { li { code { (name) " = " (value) } } }
        } }
    }
}

/// Whether compilers or flags differ. Versions may: a study over versions compares them.
fn builds_differ(servers: &[ServerFacts]) -> bool {
    let builds: BTreeSet<_> = servers
        .iter()
        .map(|it| (&it.compiler, &it.cflags))
        .collect();
    builds.len() > 1
}

/// All checks, including those that passed: otherwise a check that was not run would look the same.
fn checks(run: &Run) -> Markup {
    html! {
        @if !run.checks.is_empty() {
            h3 { "The machine" }
            div.scroll { table {
                thead { tr {
                    th scope="col" { "check" } th scope="col" { "value" }
                    th scope="col" { "limitation" } th scope="col" { "how to fix it" }
                } }
                tbody {
                    @for check in &run.checks {
                        tr {
                            td { (check.title()) } td { (check.value) }
                            td.caution { (check.limitation.as_deref().unwrap_or_default()) }
                            td { @if let Some(fix) = &check.fix { code { (fix) } } }
                        }
                    }
                }
            } }
        }
    }
}

/// The study as pgassay parsed it, which is what was run.
fn study(run: &Run) -> Markup {
    // The study was read from TOML, so TOML can represent it.
    let text = toml::to_string_pretty(&run.study)
        .unwrap_or_else(|error| format!("# The study could not be written as TOML: {error}"));
    html! {
        h3 { "The study" }
        pre { code { (text) } }
    }
}
