//! Servers of old and new versions: started, asked, restarted, stopped.

use pgassay_server::testing;

/// The versions whose `initdb`, titles and settings differ most.
const VERSIONS: [&str; 3] = ["9.6", "10", "18"];

#[test]
fn old_and_new_versions_start_answer_restart_and_stop() {
    for version in VERSIONS {
        let Some(mut server) = testing::server(version) else {
            continue;
        };
        let mut connection = server.connect().unwrap();
        let number = connection.value("show server_version_num").unwrap();
        assert_eq!(
            number,
            Some(server.installation().version.number().to_string())
        );
        connection.execute("create table kept(id int)").unwrap();
        let first = server.postmaster_pid();
        server.restart().unwrap();
        assert_ne!(server.postmaster_pid(), first);
        assert_eq!(
            server
                .connect()
                .unwrap()
                .value("select count(*) from kept")
                .unwrap()
                .as_deref(),
            Some("0")
        );
        let (data, socket) = (server.data_dir(), server.socket_dir());
        assert!(data.exists() && socket.exists());
        server.stop().unwrap();
        assert!(!data.exists() && !socket.exists());
    }
}
