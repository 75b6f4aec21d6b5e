//! The program from outside: started, loaded, killed, stopped, started again.

mod at_rest;
mod backup;
mod bench;
mod kill;
mod life;
mod namespaces;
mod second;
mod signals;
