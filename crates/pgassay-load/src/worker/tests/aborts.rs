//! Aborted and finished clients do not affect the others.

use super::*;

#[test]
fn a_client_aborted_while_it_waits_for_its_turn_stays_aborted() {
    // Nine of ten transactions end without waiting, so a client mostly waits for its turn.
    let text = "\\set r random(1, 10)\n\\if :r = 1\nselect 1;\n\\endif\n";
    let mut bench = Bench::new(3, QueryProtocol::Simple, &[(text, 1)]);
    let kept = observed(&mut bench);
    bench.options.on_abort = OnAbort::EndClient;
    bench.worker.driver.closing = Some(0);
    bench.run(1..u64::MAX, Some(500), false).unwrap();
    let aborted = kept.0.lock().unwrap().2.clone();
    assert_eq!(aborted, [0]);
    assert_eq!(bench.worker.clients[0].run.stage, ClientStage::Aborted);
    let counts = &bench.worker.recorder.clients;
    assert!(counts[0] < 500, "{counts:?}");
    assert_eq!(counts[1..], [500, 500], "the others complete theirs");
}

/// Regression: its session held an advisory lock, or a server connection of a pooler, for which the
/// others waited without end.
#[test]
fn a_client_that_has_finished_keeps_no_connection_until_the_others_have() {
    let text = "\\set pause 5 * :client_id\n\\sleep :pause us\nSELECT 1;\n";
    for (closes_finished, expected) in [(true, &[(0, 1_001), (1, 6_001)][..]), (false, &[])] {
        let mut bench = Bench::new(2, QueryProtocol::Simple, &[(text, 1)]);
        for client in &mut bench.worker.clients {
            let id = pgassay_script::ScriptValue::Int(i64::from(client.run.id));
            client.run.set_variable(VariableNames::CLIENT_ID, id);
        }
        bench.options.closes_finished = closes_finished;
        bench.run(1..u64::MAX, Some(1), false).unwrap();
        assert_eq!(bench.worker.driver.closed, expected);
        assert_eq!(bench.worker.recorder.clients, [1, 1]);
    }
}
