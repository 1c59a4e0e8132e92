"""fedfeat across machines: the only package that imports Flower.

In the order in which a federation uses them:

    certificates, keys, client_keys         who may take part, until when, and who not any more
    namespace, superlink                    nobody else on the server's machine: a network of its own, one account
    guard, addresses, processes             Flower's processes, kept running and ended with their families
    http_connection, gateway                what the outside can reach
    control                                 registering keys, starting and watching runs
    codec, messages                         payloads as bytes, messages and replies
    engine, roster                          the server's side: our loop, who is who
    app, resident                           a client's process: Flower's, or one that stays
    client, client_data, store              a client: what it answers, its images, what it remembers on disk
"""
