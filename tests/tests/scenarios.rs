//! Every scenario: real processes, a real Redis, real plugins, real signals. One folder per subject.

#![forbid(unsafe_code)]

/// The path of a job, when everything works and when the job, the receiver or the operator does not cooperate.
mod jobs {
    /// Several jobs in one `batch_run`: each has its own answer.
    mod batches;
    /// A cancel at every stage of a job.
    mod cancellation;
    /// From the stream through a plugin to a signed webhook.
    mod end_to_end;
    /// Malformed messages: the sender is told, or a dead letter is kept.
    mod messages;
    /// Runs that fail in a way that another one may not.
    mod retries;
    /// SIGTERM and SIGKILL around a job in flight.
    mod shutdown;
    /// Delivery of results: retries, final answers, limits per receiver.
    mod webhooks;
}

/// The page in a browser, as the server sends it. In a real browser: `browser`.
mod page {
    /// The coordinator's pages, with and without a token.
    mod coordinator_page;
    /// The host's page: what it shows of jobs, device and connections, and what it never shows.
    mod host_page;
}

/// The pages in a real browser. `make test-browser` runs them.
mod browser {
    /// What everyone can use: contrast, names, keyboard alone, small screens, no scripts.
    mod access;
    /// A coordinator's pages: the token, a job from the form to its counts, a cancel.
    mod coordinator;
    /// A job's life on the page.
    mod job_life;
    /// A tab that is open for 10,000 jobs.
    mod long_look;
    /// A page of another site.
    mod other_sites;
    /// What is away and comes back: Redis, and the host itself.
    mod outages;
    /// Pictures at three sizes, light and dark, for people to look at.
    mod pictures;
}

/// The files of `packaging/monitoring` with a real Prometheus. `make test-monitoring` runs them.
mod monitoring {
    /// Alerts that fire on what they are for, and clear.
    mod alerts;
    /// Both formats of `/metrics`, and what dashboard and rules ask for.
    mod metrics;
}

/// What is installed, where it is installed. `make test-dist`, `make test-arm` and `make test-container` run most of them.
mod install {
    /// The archive of `make dist`: its content, and that it runs in other distributions.
    mod archive;
    /// Containers and the Kubernetes example.
    mod container;
    /// The commands of docs/install.md, typed.
    mod page;
}

/// Vendor plugins: finding, loading, running, replacing and checking them.
mod plugins {
    /// A device that changes while it is in use.
    mod calibration;
    /// `coda-host plugin check` finds the plugin that is wrong in each case.
    mod check;
    /// The device configs of this repository, and `coda-host run`.
    mod device_configs;
    /// Plugins in separate processes: deaths, time limits, reloads.
    mod isolation;
    /// Plugins that can't be loaded: one message, status 3, no connect.
    mod loading;
    /// Processes that are gone: bystanders, and jobs that wait.
    mod lost_processes;
    /// Plugins that panic, hang, lie or change the process.
    mod misbehaving;
    /// Plugins that need a separate process.
    mod needs_process;
    /// Calls that never return.
    mod never_returns;
    /// The rights of a plugin's process.
    mod process_privileges;
    /// Several plugins in one process.
    mod several_plugins;
    /// Stored binaries of every interface version.
    mod stored_binaries;
    /// Files, folders and libraries that others could exchange.
    mod trust;
    /// The tutorial of docs/plugins.md, typed.
    mod tutorial;
}

/// Executors in Python code, as they were written for the Python node.
mod python {
    /// Cancels: awaiting, swallowing, blocking and threaded runs.
    mod cancels;
    /// Processes that end: by the executor, by a fault, by the host.
    mod ends;
    /// Factories of every form, and what they are given.
    mod factories;
    /// From the Python node to coda-host and back.
    mod migration;
    /// Whose rights an interpreter's process has, and what root trusts.
    mod rights;
    /// Results and errors of every kind, and output.
    mod runs;
    /// A site that ran the Python node: its files, interpreters and packages.
    mod site;
    /// The commands: check, inspect, run, dev, reload, doctor, status.
    mod tools;
    /// The wheel of coda-host, installed beside an executor.
    mod wheel;
    /// Interpreters without coda-node, and devices that are stated in full.
    mod without_node;
}

/// Qiskit backends as devices, by the module that the host brings. `make test-qiskit` runs them.
mod qiskit {
    /// Backends, providers and primitives of every form.
    mod backends;
    /// `plugin check` on them.
    mod check;
    /// Random circuits of a coordinator against Qiskit.
    mod circuits;
}

/// QDMI device libraries as devices. `make test-qdmi` runs those that need libraries of vendors.
mod qdmi {
    /// MQT's simulator: jobs, lists, cancels, the check, and the death of its process.
    mod ddsim;
    /// A library that misbehaves in every way that is known.
    mod faults;
    /// IQM's library against a server on loopback.
    mod iqm;
    /// Jobs in the device when the plugin's process is killed.
    mod left_jobs;
    /// What libraries tell of their devices, and libraries that are refused.
    mod mapping;
    /// The chapter of docs/plugins.md, typed.
    mod tutorial;
}

/// The host as a peer that lends its slots.
mod peers {
    /// Cloud jobs and reservations share the slots, without over-admission.
    mod admission;
    /// Connections that come and go, malformed gossip.
    mod network;
    /// The public node script, where its path is given.
    mod node_script;
    /// Interoperability with py-libp2p.
    mod python_interop;
}

/// The coordinator of distributed circuits.
mod coordinator {
    /// Jobs that are cancelled.
    mod cancels;
    /// A wall clock that is set while jobs and reservations wait.
    mod clock;
    /// Blocks that fall back to another peer when one fails at any step.
    mod coordinator_fallback;
    /// Event logs of other versions.
    mod earlier_logs;
    /// Lists, keys, methods, access, readiness, metrics.
    mod http_service;
    /// Many jobs at once, few slots, and peers that go.
    mod many_jobs;
    /// Many jobs on many peers that are killed and come back.
    mod many_peers;
    /// Jobs go on after a kill.
    mod restart;
    /// A private network in one command.
    mod sandbox;
    /// API, command line, event log, recovery after a kill.
    mod service;
    /// Two coordinators on one event log in PostgreSQL.
    mod shared_log;
    /// Leases, and the jobs that coordinators share.
    mod shared_queue;
    /// Peers that are silent or far too slow.
    mod slow_peers;
    /// Long polls and event streams.
    mod watching;
    /// Wrong states in the right form.
    mod wrong_peers;
}

/// What an operator does and sees.
mod operator {
    /// config, doctor, results, reset, and the log.
    mod commands;
    /// Stored credentials and one-time tokens.
    mod credentials;
    /// start --daemon, status, logs, stop.
    mod daemon;
    /// `coda-host history` and `usage`, against the record of the executor.
    mod history;
    /// Times of maintenance in a calendar, and limits of the site.
    mod maintenance;
    /// Other hosts, or a Python node, for the same QPU.
    mod multiple_hosts;
    /// `coda-host pause` and `resume`.
    mod pause;
    /// No secret in any output.
    mod secrets;
    /// Starts that fail after the executor was created: it is shut down and dropped.
    mod startup;
    /// Odd values, limits and mounts of real machines.
    mod surroundings;
    /// The units of `packaging/systemd` under a real systemd.
    mod systemd_units;
    /// A managed VPN, with stand-ins for OpenVPN and `ip`.
    mod vpn;
}

/// What goes away, comes back or dies.
mod faults {
    /// A kill at each step of a job.
    mod crashes;
    /// Hundreds of silent connections.
    mod crowds;
    /// Kills at random moments under load.
    mod kill_storm;
    /// Standard output or standard error that can't be written.
    mod log_target;
    /// Redis that goes away, hangs, forgets or comes back empty.
    mod redis;
    /// `rediss://` with a private CA.
    mod redis_tls;
}
