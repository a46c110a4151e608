"""What every BPF program needs: libbpf and BCC, maps, rings, links, cgroup names."""
