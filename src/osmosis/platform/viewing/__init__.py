"""The runs of the database as the viewer asks for them: what pages and the API's histories are made of."""
