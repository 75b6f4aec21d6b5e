//! Tests of the program from outside: started, loaded, killed, stopped, started again.

mod at_rest;
mod backup;
#[cfg(feature = "bench")]
mod bench;
mod clock;
mod configuration;
mod copying;
mod directories;
mod dumps;
mod flood;
mod importing;
mod kill;
mod life;
mod looking;
mod moving;
mod namespaces;
mod nodes;
mod once;
mod outage;
mod sampling;
mod second;
mod signals;
mod sketches;
