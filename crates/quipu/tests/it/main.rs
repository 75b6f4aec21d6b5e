//! The program from outside: started, loaded, killed, stopped, started again.

mod kill;
mod life;
mod second;
mod signals;
