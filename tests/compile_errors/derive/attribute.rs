#[derive(podracer::Tree)]
#[tree(nested = N)]
struct State<M> {
    params: M,
}

#[derive(podracer::Tree)]
#[tree(leaf = M)]
struct Other<M> {
    params: M,
}

fn main() {}
