//! The command. See `ujournal --help`.

fn main() -> std::process::ExitCode {
    ujournal::cli::run(std::env::args_os()).into()
}
