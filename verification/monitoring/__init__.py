"""The files for Prometheus and Grafana, checked by Prometheus itself."""
