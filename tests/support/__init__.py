"""What tests share: small federations, data sets, nets, records, tables, sweeps, processes and hosts."""
