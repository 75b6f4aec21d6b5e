//! Finds environment variables that begin with `QUIPU_` but have no meaning.
//!
//! In: names. Out: the names that are mistakes.
//!
//! Kubernetes describes each service by variables that begin with the service's name. These are no
//! mistakes.

use super::settings::SETTINGS;

/// Prefix of all our variables.
const PREFIX: &str = "QUIPU_";

/// Variables that are not settings: the configuration file, and those of client commands.
const OTHERS: [&str; 2] = ["QUIPU_CONFIG", "QUIPU_SERVER"];

/// The names with our prefix that are neither ours nor describe a service.
pub fn unknown(names: impl Iterator<Item = String>) -> Vec<String> {
    let known: Vec<String> = known().collect();
    let is_unknown = |name: &String| name.starts_with(PREFIX) && !known.contains(name) && !describes_service(name);
    names.filter(is_unknown).collect()
}

/// Every variable that the program reads.
pub fn known() -> impl Iterator<Item = String> {
    SETTINGS.iter().map(|setting| setting.variable()).chain(OTHERS.map(str::to_owned))
}

/// Returns true if Kubernetes or a container link makes variables of this form.
fn describes_service(name: &str) -> bool {
    // QUIPU_PORT_7379_TCP, QUIPU_PORT_7379_TCP_ADDR
    let has_protocol = |ports: &str| ports.split('_').any(|word| ["TCP", "UDP", "SCTP"].contains(&word));
    name.ends_with("_SERVICE_HOST")
        || name.ends_with("_PORT")
        || name.contains("_SERVICE_PORT_")
        || name.split_once("_PORT_").is_some_and(|(_, ports)| has_protocol(ports))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_variables_and_those_of_services_are_no_mistakes() {
        let names = [
            "QUIPU_SERVICE_HOST",
            "QUIPU_SERVICE_PORT",
            "QUIPU_SERVICE_PORT_RESP",
            "QUIPU_PORT",
            "QUIPU_PORT_7379_TCP",
            "QUIPU_PORT_7379_TCP_PROTO",
            "QUIPU_HTTP_PORT_7380_UDP_ADDR",
            "QUIPU_CONFIG",
            "QUIPU_SERVER",
            "QUIPU_PASSWORD",
            "PATH",
            "MY_QUIPU_X",
        ];
        let names = names.into_iter().map(str::to_owned);
        assert_eq!(unknown(names.chain(known())), Vec::<String>::new());
    }

    #[test]
    fn all_others_of_our_prefix_are() {
        let names = ["QUIPU_WORKER", "QUIPU_", "QUIPU_REPORT_X", "QUIPU_PORT_7379", "QUIPU_SERVICE"];
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        assert_eq!(unknown(names.clone().into_iter()), names);
    }
}
