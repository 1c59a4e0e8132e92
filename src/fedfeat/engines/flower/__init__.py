"""fedfeat across machines: the only package that imports Flower.

In the order in which a federation uses them:

    keys, certificates                       who may take part
    guard, supervise, addresses, processes   Flower's processes, kept running and ended with their families
    wire, admission, gateway, reach          the one door to the outside, and a look at it before a client starts
    control, app, deploy                     registering keys, starting runs, a whole federation as processes
    server_app, engine, roster, post         the server's side: our loop, who is who, letters and answers
    protocol, codec, records, screen, pace   what is said, how it is packed, what is refused, how often to look
    resident, client_app, site, source,      a client's side: where it lives, what it answers, where its images come
    own_data, store, logs                    from, what it remembers on disk, what it says
"""
