//! Tests of which facts are reported.

use super::*;

#[test]
fn calls_that_hold_no_memory_raise_no_doubt() {
    assert!(!may_affect_memory("nvmlDeviceGetFanSpeed") && !may_affect_memory("cuptiActivityEnable"));
    assert!(may_affect_memory("cudaGraphicsMapResources") && may_affect_memory("cuMemCreate"));
}

#[test]
fn the_first_failure_is_reported_though_a_later_process_has_a_smaller_id() {
    let failure = |message: &str, failed| Speaker {
        torch: Some("2.15.0".to_owned()),
        exception: Some((
            Exception {
                r#type: "ValueError".to_owned(),
                message: message.to_owned(),
                traceback: String::new(),
            },
            false,
        )),
        failed,
        ..Speaker::default()
    };
    let mut inbox = Inbox::default();
    inbox.processes.insert(30_000, failure("first", 1));
    inbox.processes.insert(400, failure("second", 2));
    let (found, _) = failures::uncaught(&inbox, Ended::Exited(1)).unwrap();
    assert_eq!(found.message, "first");
}
