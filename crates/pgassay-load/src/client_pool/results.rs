//! The measurement of a run, merged from the records of the workers.

use std::sync::PoisonError;

use hdrhistogram::Histogram;

use super::ClientPool;
use crate::client::ClientStage;
use crate::command_times::CommandRecords;
use crate::measurement::{
    ClientTime, CommandMeasurement, Instants, Measurement, Openings, Reconnecting,
    ScriptMeasurement, TimerLag, is_client_limited,
};
use crate::recorder::{Recorder, latency_histogram};
use crate::thread_usage::ThreadUsage;
use crate::worker::DelayAccount;

impl ClientPool {
    pub(super) fn measurement(
        &self,
        instants: Instants,
        threads: Vec<ThreadUsage>,
        interrupted: bool,
        unfinished: u32,
    ) -> Measurement {
        let recorders = || self.workers.iter().map(|worker| &worker.recorder);
        let (latency_ns, scripts) = self.script_measurements();
        let clients: Vec<u64> = recorders()
            .flat_map(|recorder| recorder.clients.iter().copied())
            .collect();
        let timer_lag = recorders().fold(TimerLag::default(), |sum, recorder| TimerLag {
            wakeups: sum.wakeups + recorder.timer_lag.wakeups,
            sum_us: sum.sum_us + recorder.timer_lag.sum_us,
            max_us: sum.max_us.max(recorder.timer_lag.max_us),
        });
        Measurement {
            instants,
            window_us: (instants.window_end_ns - instants.window_begin_ns) / 1000,
            transactions: clients.iter().sum(),
            credited_transactions: recorders().map(Recorder::credited_transactions).sum(),
            transactions_total: recorders()
                .map(|recorder| recorder.transactions_total)
                .sum(),
            settle_transactions: recorders()
                .map(|recorder| recorder.settle_transactions)
                .sum(),
            failed: scripts
                .iter()
                .map(|script: &ScriptMeasurement| script.failed)
                .sum(),
            failed_total: recorders().map(|recorder| recorder.failed_total).sum(),
            failed_us: recorders().map(|recorder| recorder.failed_ns).sum::<u64>() / 1000,
            latency_ns,
            since_begin_ns: self.since_begin(),
            scripts,
            clients,
            time: self.client_time(instants),
            client_limited: is_client_limited(&threads),
            threads,
            timer_lag,
            interrupted,
            unfinished,
            aborted: self.aborted(),
            skipped: recorders().map(|recorder| recorder.skipped).sum(),
            unserved: recorders().map(|recorder| recorder.unserved).sum(),
            commands: self.commands(),
            reconnecting: Reconnecting {
                opened: recorders().map(|recorder| recorder.opened).sum(),
                sum_us: recorders()
                    .map(|recorder| recorder.connecting_ns)
                    .sum::<u64>()
                    / 1000,
            },
            openings: self.openings(),
            io: self.io.clone(),
        }
    }

    /// Merges the threads' histograms: over all scripts, and of each.
    fn script_measurements(&self) -> (Histogram<u64>, Vec<ScriptMeasurement>) {
        let recorders = || self.workers.iter().map(|worker| &worker.recorder);
        let mut latency_ns = latency_histogram();
        let mut scripts = Vec::new();
        for (index, part) in self.program.parts.iter().enumerate() {
            let mut of_script = latency_histogram();
            for recorder in recorders() {
                of_script
                    .add(&recorder.scripts[index].latency_ns)
                    .expect("all histograms have the same bounds");
            }
            latency_ns
                .add(&of_script)
                .expect("all histograms have the same bounds");
            scripts.push(ScriptMeasurement {
                name: part.script.name().into(),
                weight: part.weight,
                transactions: of_script.len(),
                failed: recorders()
                    .map(|recorder| recorder.scripts[index].failed)
                    .sum(),
                latency_ns: of_script,
            });
        }
        (latency_ns, scripts)
    }

    /// Returns latencies measured from the beginning of transactions, over all threads.
    fn since_begin(&self) -> Option<Histogram<u64>> {
        let of_threads = self.workers.iter();
        let mut parts = of_threads.filter_map(|worker| worker.recorder.since_begin_ns.as_ref());
        let mut sum = parts.next()?.clone();
        for part in parts {
            sum.add(part).expect("all histograms have the same bounds");
        }
        Some(sum)
    }

    /// Returns the phases of opening connections, over all threads.
    fn openings(&self) -> Option<Openings> {
        let of_threads = self.workers.iter();
        let mut parts = of_threads.filter_map(|worker| worker.recorder.openings.as_ref());
        let mut sum = (**parts.next()?).clone();
        for part in parts {
            sum.merge(part);
        }
        Some(sum)
    }

    pub(super) fn aborted(&self) -> u32 {
        let clients = self.workers.iter().flat_map(|worker| &worker.clients);
        clients
            .filter(|client| client.run.stage == ClientStage::Aborted)
            .count() as u32
    }

    /// Returns the times of commands, over all clients.
    fn commands(&self) -> Vec<Vec<CommandMeasurement>> {
        let mut sum: Option<CommandRecords> = None;
        for records in &self.command_records {
            let records = records.lock().unwrap_or_else(PoisonError::into_inner);
            match &mut sum {
                None => sum = Some(records.clone()),
                Some(sum) => sum.merge(&records),
            }
        }
        sum.map_or_else(Vec::new, CommandRecords::best)
    }

    fn client_time(&self, instants: Instants) -> ClientTime {
        let mut time_ns = [0; 3];
        for worker in &self.workers {
            let recorder = &worker.recorder;
            time_ns[0] += recorder.in_transaction_ns;
            time_ns[1] += recorder.asleep_ns;
            time_ns[2] += recorder.between_ns;
            // Clients that finished before the window ended, as in a run by count.
            for client in &worker.clients {
                let since_ns = client.run.since_ns.max(instants.window_begin_ns);
                if matches!(
                    client.run.stage,
                    ClientStage::Idle | ClientStage::Postponed | ClientStage::Aborted
                ) {
                    time_ns[2] += instants.window_end_ns.saturating_sub(since_ns);
                }
            }
        }
        let [in_transaction_us, asleep_us, between_us] = time_ns.map(|ns: u64| ns / 1000);
        let sum_us = |of: fn(&DelayAccount) -> Option<u64>| {
            let accounts = self.workers.iter().map(|it| it.account.as_deref());
            let sum_ns: Option<u64> = accounts.map(|it| it.and_then(of)).sum();
            sum_ns.map(|ns| ns / 1000)
        };
        ClientTime {
            in_transaction_us,
            asleep_us,
            between_us,
            thread_busy_us: sum_us(|it| Some(it.certain().busy_ns)),
            client_run_queue_us: sum_us(|it| it.run_queue_ns(it.certain())),
            possible_thread_busy_us: sum_us(|it| Some(it.possible().busy_ns)),
            possible_run_queue_us: sum_us(|it| it.run_queue_ns(it.possible())),
        }
    }
}
